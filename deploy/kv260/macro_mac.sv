// MACRO_MAC: 8 x 8 processing elements and the sums of 8 outputs. It takes a step (8 inputs x 8 outputs) every two
// cycles, which is the rate at which a 128-bit stream brings weights. It never stops: whoever sends the last step of a
// block must have room for its sums.
module macro_mac (
    input  logic          clock,
    input  logic          reset,
    input  logic          step_valid,
    output logic          step_ready,
    input  logic          step_first,  // of a block: the partial sums begin at +0
    input  logic          step_last,   // of a block: its sums are complete
    input  logic [279:0]  x,           // numbers of 8 inputs
    input  logic [279:0]  scales,      // numbers of 8 outputs
    input  logic [319:0]  integers,    // q - z of input i and output j in bits 5 (8 i + j) on
    output logic          sums_valid,  // for one cycle, 21 cycles after the last step
    output logic [279:0]  sums
);
  localparam PRODUCTS = 10;  // cycles from a step to its products
  localparam TREE = PRODUCTS + 8;
  localparam DONE = PRODUCTS + 11;

  logic turn;
  always_ff @(posedge clock) turn <= reset ? 1'b0 : !turn;
  assign step_ready = !turn;

  // Bit i - 1: what the step of i cycles ago was.
  logic [TREE-1:0] was_step;
  logic [TREE:0]   was_first;
  logic [DONE-1:0] was_last;
  logic            taken;
  assign taken = step_valid && step_ready;
  always_ff @(posedge clock) begin
    was_step <= reset ? 0 : {was_step[TREE-2:0], taken};
    was_first <= reset ? 0 : {was_first[TREE-1:0], taken && step_first};
    was_last <= reset ? 0 : {was_last[DONE-2:0], taken && step_last};
  end
  assign sums_valid = was_last[DONE-1];

  generate
    for (genvar j = 0; j < 8; j++) begin : outputs
      logic [279:0] products;
      for (genvar i = 0; i < 8; i++) begin : inputs
        processing_element pe (
            .clock,
            .turn,
            .x(x[35*i+:35]),
            .scale(scales[35*j+:35]),
            .integer_in(integers[5*(8*i+j)+:5]),
            .product(products[35*i+:35])
        );
      end
      column_sum column (
          .clock,
          .turn,
          .products,
          .step(was_step[TREE-1]),
          .first(was_first[TREE]),
          .sum(sums[35*j+:35])
      );
    end
  endgenerate
endmodule
