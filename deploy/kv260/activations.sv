// The activations x of a linear, 8 numbers per step, read in rising order once per block.
// Written four numbers at a time; the first ones after `last` begin a new linear's.
module activations (
    input  logic         clock,
    input  logic         reset,
    input  logic         write,
    input  logic         write_last,
    input  logic [139:0] written,  // 4 numbers
    input  logic         taken,    // a step has been taken: the next one's x is there two cycles later
    input  logic         rewind,   // it was the last of a block
    output logic [279:0] x
);
  localparam DEPTH_BITS = 10;  // 1024 steps: 8192 inputs

  logic [279:0] memory[0:2**DEPTH_BITS-1];
  logic [139:0] low;
  logic [DEPTH_BITS-1:0] write_address, read_address;
  logic high;

  always_ff @(posedge clock) begin
    if (write && high) memory[write_address] <= {written, low};
    x <= memory[read_address];
  end

  always_ff @(posedge clock) begin
    if (write) low <= written;
    if (reset) begin
      write_address <= 0;
      high <= 1'b0;
    end else if (write) begin
      high <= !high;
      if (write_last) write_address <= 0;
      else if (high) write_address <= write_address + 1'b1;
    end
    if (reset) read_address <= 0;
    else if (taken) read_address <= rewind ? 0 : read_address + 1'b1;
  end
endmodule
