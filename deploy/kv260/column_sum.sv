// The sum of an output: an adder tree over the 8 products of a step, then the partial sum of all steps of a block:
// acc + (((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7))), every sum rounded.
//
// The adders take two turns per step, as the PEs do: four products in one, four in the other. The last adder adds the
// two halves in one turn and the partial sum in the other. Its result is ready for the next step 2 cycles later, so
// the partial sum goes round in the adder. In a turn without a step it adds -0, which changes nothing.
module column_sum (
    input  logic         clock,
    input  logic         turn,
    input  logic [279:0] products,  // 8 numbers, in turn 0
    input  logic         step,      // 8 cycles after the products: there was a step
    input  logic         first,     // 9 cycles after the products: it is the first of a block
    output logic [34:0]  sum        // 11 cycles after the products, in turn 1
);
  localparam [34:0] PLUS_ZERO = 35'd0;
  localparam [34:0] MINUS_ZERO = 35'd1 << 32;

  // Products 0 to 3 in turn 1, products 4 to 7 in the turn 0 that follows.
  logic [139:0] four, held;
  always_ff @(posedge clock) begin
    four <= turn ? held : products[139:0];
    held <= products[279:140];
  end

  logic [34:0] pair_0, pair_1, half;
  add add_0 (.clock, .a(four[34:0]), .b(four[69:35]), .sum(pair_0));
  add add_1 (.clock, .a(four[104:70]), .b(four[139:105]), .sum(pair_1));
  add add_half (.clock, .a(pair_0), .b(pair_1), .sum(half));

  // Turn 0: first half + second half. Turn 1: tree + partial sum.
  logic [34:0] left, right;
  always_ff @(posedge clock) begin
    if (turn) left <= half;
    else left <= step ? sum : MINUS_ZERO;
  end
  always_comb begin
    if (!turn) right = half;
    else right = first ? PLUS_ZERO : sum;
  end
  add add_last (.clock, .a(left), .b(right), .sum);
endmodule
