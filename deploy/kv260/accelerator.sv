// The accelerator: four channels, each with a stream of weights in and a stream of sums out, and one stream of
// activations for all of them. All streams are 128 bits wide, with valid and ready.
//
// A linear has E activations (at most 8192; four in FP32 per strip, `x_last` with the last strip) and per channel its
// blocks of weights. Each block gives two strips: sums 0 to 3, sums 4 to 7. The settings `steps`, `macros` and `blocks`
// are read with the last strip of activations. For linears that share their activations, sizes of macros and blocks too,
// `blocks` counts the blocks of all of them.
//
// Every stream may be offered at any time. Activations are taken only when all blocks that the last ones are for have
// left as sums, and a channel takes as many blocks as `blocks` says before it waits for the next activations.
module accelerator (
    input  logic         clock,
    input  logic         reset,
    input  logic [4:0]   steps,   // of a macro: G / 8, from 1 to 16
    input  logic [9:0]   macros,  // of a block: E / G, 1 or more
    input  logic [63:0]  blocks,  // of channel c in bits 16 c on, 0 or more
    input  logic         x_valid,
    output logic         x_ready,
    input  logic         x_last,
    input  logic [127:0] x,
    input  logic [3:0]   weight_valid,
    output logic [3:0]   weight_ready,
    input  logic [511:0] weight,  // channel c in bits 128 c on
    output logic [3:0]   sum_valid,
    input  logic [3:0]   sum_ready,
    output logic [511:0] sum      // channel c in bits 128 c on
);
  logic [3:0]   idle;
  logic         x_taken, x_write, x_write_last;
  logic [4:0]   its_steps;
  logic [9:0]   its_macros;
  logic [63:0]  its_blocks;
  logic [139:0] numbers, written;
  assign x_ready = &idle && !(x_write && x_write_last);
  assign x_taken = x_valid && x_ready;

  always_ff @(posedge clock)
    if (x_taken && x_last) begin
      its_steps <= steps;
      its_macros <= macros;
      its_blocks <= blocks;
    end

  // Activations become numbers once, for all channels.
  generate
    for (genvar i = 0; i < 4; i++) begin : inputs
      recode_fp32 recode (.single(x[32*i+:32]), .number(numbers[35*i+:35]));
    end
  endgenerate
  always_ff @(posedge clock) begin
    x_write <= x_taken && !reset;
    x_write_last <= x_last;
    written <= numbers;
  end

  generate
    for (genvar c = 0; c < 4; c++) begin : channels
      channel unit (
          .clock, .reset, .steps(its_steps), .macros(its_macros), .blocks(its_blocks[16*c+:16]),
          .x_write, .x_last(x_write_last), .x_written(written), .idle(idle[c]),
          .weight_valid(weight_valid[c]), .weight_ready(weight_ready[c]), .weight(weight[128*c+:128]),
          .sum_valid(sum_valid[c]), .sum_ready(sum_ready[c]), .sum(sum[128*c+:128])
      );
    end
  endgenerate
endmodule
