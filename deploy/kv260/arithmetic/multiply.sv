// The product of two numbers (number.svh), rounded to nearest even where FP32 would round it. A new pair may enter in
// every cycle; `product` is there 5 cycles later.
module multiply #(
    parameter B_BITS = 24  // significant bits of b that may differ from 0, from the leading one on
) (
    input  logic        clock,
    input  logic [34:0] a,
    input  logic [34:0] b,
    output logic [34:0] product
);
  `include "number.svh"
  localparam WIDTH = 24 + B_BITS;

  function automatic [1:0] kind_of_product(input [1:0] of_a, input [1:0] of_b);
    if (of_a == NOT_A_NUMBER || of_b == NOT_A_NUMBER) kind_of_product = NOT_A_NUMBER;
    else if (of_a == INFINITE || of_b == INFINITE)
      kind_of_product = of_a == ZERO || of_b == ZERO ? NOT_A_NUMBER : INFINITE;
    else kind_of_product = of_a == ZERO || of_b == ZERO ? ZERO : FINITE;
  endfunction

  // 1: the operands, and the exponent of a product below 2.
  logic [23:0]       a_1;
  logic [B_BITS-1:0] b_1;
  logic [1:0]        kind_1;
  logic              sign_1;
  logic signed [10:0] exponent_1;
  always_ff @(posedge clock) begin
    a_1 <= {1'b1, a[22:0]};
    b_1 <= {1'b1, b[22-:B_BITS-1]};
    kind_1 <= kind_of_product(a[34:33], b[34:33]);
    sign_1 <= a[32] ^ b[32];
    exponent_1 <= {2'b0, a[31:23]} + {2'b0, b[31:23]} - 11'd159;
  end

  // 2: the exact product, and the bits that a subnormal result has less than 24 (26 and more leave nothing).
  logic [WIDTH-1:0] exact_2;
  logic signed [10:0] missing, exponent_2;
  logic [4:0] missing_2;
  logic [1:0] kind_2;
  logic sign_2;
  assign missing = SMALLEST_NORMAL_EXPONENT - exponent_1;
  always_ff @(posedge clock) begin
    exact_2 <= a_1 * b_1;
    missing_2 <= missing < 0 ? 5'd0 : missing > 26 ? 5'd26 : missing[4:0];
    exponent_2 <= exponent_1;
    kind_2 <= kind_1;
    sign_2 <= sign_1;
  end

  // 3: the leading one in the top bit of 24 bits and a guard bit; the mask of the bits that rounding removes.
  // Bit 25 of the mask: the result is less than half of the smallest subnormal number.
  logic        two;
  logic [26:0] lost;
  logic [24:0] value_3;
  logic [25:0] mask_3;
  logic        sticky_3, sign_3;
  logic [1:0]  kind_3;
  logic signed [10:0] exponent_3;
  assign two = exact_2[WIDTH-1];
  always_comb for (int i = 0; i < 27; i++) lost[i] = {27'd0, missing_2} >= i;
  always_ff @(posedge clock) begin
    value_3 <= two ? exact_2[WIDTH-1-:25] : exact_2[WIDTH-2-:25];
    sticky_3 <= |exact_2[WIDTH-27:0] | (two & exact_2[WIDTH-26]);
    mask_3 <= (two ? lost[26:1] : lost[25:0]) | 26'd1;
    exponent_3 <= exponent_2 + {10'd0, two};
    kind_3 <= kind_2;
    sign_3 <= sign_2;
  end

  // 4: up or down. With ones in the place of the removed bits, adding one adds to the last bit that is kept.
  logic        half, below_half, odd;
  logic [24:0] filled_4, mask_4;
  logic        up_4, sign_4;
  logic [1:0]  kind_4;
  logic signed [10:0] exponent_4;
  assign half = |(value_3 & mask_3[24:0] & ~mask_3[25:1]);
  assign below_half = |(value_3 & mask_3[25:1]) | sticky_3;
  assign odd = |(value_3[24:1] & ~mask_3[24:1] & mask_3[23:0]);
  always_ff @(posedge clock) begin
    filled_4 <= value_3 | mask_3[24:0];
    mask_4 <= mask_3[24:0];
    up_4 <= half & (below_half | odd);
    exponent_4 <= exponent_3;
    kind_4 <= kind_3;
    sign_4 <= sign_3;
  end

  // 5: the rounded number.
  logic        carry;
  logic [24:0] sum, kept;
  logic signed [10:0] exponent;
  assign {carry, sum} = {1'b0, filled_4} + {25'd0, up_4};
  assign kept = sum & ~mask_4;
  assign exponent = exponent_4 + {10'd0, carry};
  always_ff @(posedge clock) begin
    product[31:0] <= {exponent[8:0], kept[23:1]};
    product[32] <= sign_4;
    if (kind_4 != FINITE) product[34:33] <= kind_4;
    else if (!carry && !kept[24]) product[34:33] <= ZERO;
    else product[34:33] <= exponent > LARGEST_EXPONENT ? INFINITE : FINITE;
  end
endmodule
