// The unpacking unit: a stream of macros in strips of 128 bits becomes steps for a MACRO_MAC. A macro has a strip of 8
// FP16 scales, a strip with 8 zeros, and G / 4 strips of weights, of which two make a step.
//
// A step waits at most one cycle until it is taken, and the next one is ready two cycles later at the earliest, so
// that only the begin of a block may make the stream wait.
module unpack (
    input  logic         clock,
    input  logic         reset,
    input  logic [4:0]   steps,        // of a macro: G / 8, from 1 to 16
    input  logic [9:0]   macros,       // of a block: E / G, 1 or more
    input  logic         may_begin,    // a block may begin
    output logic         begins,       // the first strip of a block is taken
    input  logic         strip_valid,
    output logic         strip_ready,
    input  logic [127:0] strip,
    output logic         step_valid,
    input  logic         step_ready,
    output logic         step_first,   // of a block
    output logic         step_last,    // of a block
    output logic [279:0] scales,       // numbers of 8 outputs
    output logic [319:0] integers      // q - z of input i and output j in bits 5 (8 i + j) on
);
  localparam [1:0] SCALES = 2'd0;
  localparam [1:0] ZEROS = 2'd1;
  localparam [1:0] FIRST_HALF = 2'd2;
  localparam [1:0] SECOND_HALF = 2'd3;

  // The place in the stream.
  logic [1:0] kind;
  logic [4:0] step;
  logic [9:0] macro;
  logic       taken, block_begins, macro_ends, block_ends;
  assign block_begins = kind == SCALES && macro == 0;
  assign macro_ends = kind == SECOND_HALF && step == steps - 5'd1;
  assign block_ends = macro_ends && macro == macros - 10'd1;
  assign strip_ready = !block_begins || may_begin;
  assign taken = strip_valid && strip_ready;
  assign begins = taken && block_begins;

  always_ff @(posedge clock) begin
    if (reset) begin
      kind <= SCALES;
      step <= 5'd0;
      macro <= 10'd0;
    end else if (taken) begin
      if (kind != SECOND_HALF) kind <= kind + 2'd1;
      else begin
        kind <= macro_ends ? SCALES : FIRST_HALF;
        step <= macro_ends ? 5'd0 : step + 5'd1;
        if (macro_ends) macro <= block_ends ? 10'd0 : macro + 10'd1;
      end
    end
  end

  // Scales become numbers one strip later, when the last step of the macro before has been taken.
  logic [127:0] halves, first_half;
  logic [279:0] numbers;
  logic [31:0]  zeros, new_zeros;
  nibbles of_zeros (.word(strip[31:0]), .by_output(new_zeros));
  always_ff @(posedge clock)
    if (taken)
      case (kind)
        SCALES: halves <= strip;
        ZEROS: begin
          scales <= numbers;
          zeros <= new_zeros;
        end
        FIRST_HALF: first_half <= strip;
        default: ;
      endcase

  generate
    for (genvar j = 0; j < 8; j++) begin : outputs
      recode_fp16 recode (.half(halves[16*j+:16]), .number(numbers[35*j+:35]));
    end
  endgenerate

  // q - z of both halves.
  logic [255:0] words, weights;
  logic [319:0] differences;
  assign words = {strip, first_half};
  generate
    for (genvar i = 0; i < 8; i++) begin : inputs
      nibbles of_weights (.word(words[32*i+:32]), .by_output(weights[32*i+:32]));
      for (genvar j = 0; j < 8; j++) begin : outputs
        assign differences[5*(8*i+j)+:5] = {1'b0, weights[4*(8*i+j)+:4]} - {1'b0, zeros[4*j+:4]};
      end
    end
  endgenerate

  always_ff @(posedge clock) begin
    if (reset) step_valid <= 1'b0;
    else if (taken && kind == SECOND_HALF) step_valid <= 1'b1;
    else if (step_ready) step_valid <= 1'b0;
    if (taken && kind == SECOND_HALF) begin
      step_first <= macro == 0 && step == 0;
      step_last <= block_ends;
      integers <= differences;
    end
  end
endmodule
