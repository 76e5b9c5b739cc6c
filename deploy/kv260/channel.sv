// A channel: its stream of macros is unpacked, multiplied with its copy of the activations, and leaves as sums.
module channel (
    input  logic         clock,
    input  logic         reset,
    input  logic [4:0]   steps,        // of a macro: G / 8
    input  logic [9:0]   macros,       // of a block: E / G
    input  logic [15:0]  blocks,       // that the activations are for, when the last of them are written
    input  logic         x_write,
    input  logic         x_last,
    input  logic [139:0] x_written,    // 4 numbers
    output logic         idle,         // all blocks that the activations are for have left
    input  logic         weight_valid,
    output logic         weight_ready,
    input  logic [127:0] weight,
    output logic         sum_valid,
    input  logic         sum_ready,
    output logic [127:0] sum           // 4 sums in FP32
);
  logic room, empty, begins, step_valid, step_ready, step_first, step_last, sums_valid, taken;
  logic [279:0] x, scales, numbers;
  logic [319:0] integers;
  assign taken = step_valid && step_ready;

  logic [15:0] waiting;  // blocks that have not begun
  assign idle = waiting == 16'd0 && empty;
  always_ff @(posedge clock) begin
    if (reset) waiting <= 16'd0;
    else if (x_write && x_last) waiting <= blocks;
    else waiting <= waiting - {15'd0, begins};
  end

  unpack unpack_unit (
      .clock, .reset, .steps, .macros, .may_begin(room && waiting != 16'd0), .begins,
      .strip_valid(weight_valid), .strip_ready(weight_ready), .strip(weight),
      .step_valid, .step_ready, .step_first, .step_last, .scales, .integers
  );
  activations inputs (
      .clock, .reset, .write(x_write), .write_last(x_last), .written(x_written),
      .taken, .rewind(step_last), .x
  );
  macro_mac mac (
      .clock, .reset, .step_valid, .step_ready, .step_first, .step_last,
      .x, .scales, .integers, .sums_valid, .sums(numbers)
  );
  sums out (
      .clock, .reset, .begins, .room, .empty, .sums_valid, .numbers,
      .strip_valid(sum_valid), .strip_ready(sum_ready), .strip(sum)
  );
endmodule
