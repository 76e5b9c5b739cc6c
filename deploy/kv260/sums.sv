// The sums of complete blocks on their way out: FP32, four per strip of 128 bits, two strips per block.
// Holds four blocks. `room` is 1 while fewer than four have begun and not left.
module sums (
    input  logic         clock,
    input  logic         reset,
    input  logic         begins,       // a block begins
    output logic         room,
    output logic         empty,        // no block has begun and not left
    input  logic         sums_valid,   // a block is complete; at least 10 cycles apart
    input  logic [279:0] numbers,      // 8 sums
    output logic         strip_valid,
    input  logic         strip_ready,
    output logic [127:0] strip
);
  // Sums 0 to 3 are written in the cycle after a block's end, sums 4 to 7 in the cycle after that.
  logic [279:0] held;
  logic [127:0] converted;
  logic         writes_low, writes_high;
  always_ff @(posedge clock) begin
    if (sums_valid) held <= numbers;
    else held <= {140'd0, held[279:140]};
    writes_low <= sums_valid && !reset;
    writes_high <= writes_low && !reset;
  end
  generate
    for (genvar j = 0; j < 4; j++) begin : outputs
      to_fp32 convert (.number(held[35*j+:35]), .single(converted[32*j+:32]));
    end
  endgenerate

  logic [127:0] memory[0:7];
  logic [3:0]   written, read;  // strips, modulo 16
  logic         leaves, block_leaves;
  assign strip_valid = written != read;
  assign strip = memory[read[2:0]];
  assign leaves = strip_valid && strip_ready;
  assign block_leaves = leaves && read[0];
  always_ff @(posedge clock) begin
    if (writes_low || writes_high) memory[written[2:0]] <= converted;
    if (reset) {written, read} <= 8'd0;
    else begin
      if (writes_low || writes_high) written <= written + 4'd1;
      if (leaves) read <= read + 4'd1;
    end
  end

  logic [2:0] blocks;
  assign room = blocks != 3'd4;
  assign empty = blocks == 3'd0;
  always_ff @(posedge clock) begin
    if (reset) blocks <= 3'd0;
    else blocks <= blocks + {2'd0, begins} - {2'd0, block_leaves};
  end
endmodule
