// The accelerator: four channels, each with a stream of weights in and a stream of sums out, and one stream of
// activations for all of them. All streams are 128 bits wide, with valid and ready.
//
// A linear: set `steps` and `macros`, send its E activations (at most 8192; four in FP32 per strip, `x_last` with the
// last strip), then to each channel its blocks. Each block gives two strips: sums 0 to 3, sums 4 to 7. Linears that
// share their activations may follow without sending them again. Activations are taken only while no block is in
// flight, so the weights of a linear may be offered only once its activations are in. Nothing holds activations back
// before the first block of a linear: those of the next one may be offered only once the last sums of this one are out.
module accelerator (
    input  logic         clock,
    input  logic         reset,
    input  logic [4:0]   steps,   // of a macro: G / 8, from 1 to 16
    input  logic [9:0]   macros,  // of a block: E / G, 1 or more
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
  logic [3:0] idle;
  assign x_ready = &idle;

  // Activations become numbers once, for all channels.
  logic         x_write, x_write_last;
  logic [139:0] numbers, written;
  generate
    for (genvar i = 0; i < 4; i++) begin : inputs
      recode_fp32 recode (.single(x[32*i+:32]), .number(numbers[35*i+:35]));
    end
  endgenerate
  always_ff @(posedge clock) begin
    x_write <= x_valid && x_ready && !reset;
    x_write_last <= x_last;
    written <= numbers;
  end

  generate
    for (genvar c = 0; c < 4; c++) begin : channels
      channel unit (
          .clock, .reset, .steps, .macros, .x_write, .x_last(x_write_last), .x_written(written), .idle(idle[c]),
          .weight_valid(weight_valid[c]), .weight_ready(weight_ready[c]), .weight(weight[128*c+:128]),
          .sum_valid(sum_valid[c]), .sum_ready(sum_ready[c]), .sum(sum[128*c+:128])
      );
    end
  endgenerate
endmodule
