// A processing element (PE): (q - z) * (x * scale), both products rounded, by one multiplier in two turns.
//
// A step's operands are there in a cycle of turn 0. x * scale leaves the multiplier 5 cycles later, in turn 1, and goes
// straight back into it with the integer. `product` is there 10 cycles after the operands, in turn 0; in turn 1 it is
// another step's x * scale.
module processing_element (
    input  logic        clock,
    input  logic        turn,
    input  logic [34:0] x,
    input  logic [34:0] scale,
    input  logic [4:0]  integer_in,  // q - z, two's complement
    output logic [34:0] product
);
  logic [24:0] integers;  // one cycle older every 5 bits
  logic [34:0] integer_number;

  always_ff @(posedge clock) integers <= {integers[19:0], integer_in};
  recode_integer recode (.value(integers[24:20]), .number(integer_number));

  // Of both scale (FP16) and integer, only 11 bits may differ from 0.
  multiply #(.B_BITS(11)) multiplier (
      .clock,
      .a(turn ? product : x),
      .b(turn ? integer_number : scale),
      .product
  );
endmodule
