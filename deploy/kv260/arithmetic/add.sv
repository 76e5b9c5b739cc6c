// The sum of two numbers (number.svh), rounded to nearest even. A new pair may enter in every cycle; `sum` is there 2
// cycles later. Sums that are subnormal in FP32 are exact.
//
// There are two paths, so that each cycle is short. On the near path, numbers of unlike signs and nearly equal
// exponents cancel: the exact difference is shifted far to the left and never rounded. On the far path, all others
// are shifted by one bit at most after the addition, then rounded.
module add (
    input  logic        clock,
    input  logic [34:0] a,
    input  logic [34:0] b,
    output logic [34:0] sum
);
  `include "number.svh"

  // 1: order by kind and magnitude, align, subtract on the near path.
  logic [34:0] greater, lesser;
  logic        subtract, cancels;
  logic [23:0] greater_bits, lesser_bits;
  logic [8:0]  distance;
  logic [4:0]  shift;
  logic [51:0] aligned;
  logic [24:0] difference;
  assign {greater, lesser} = {b[34:33], b[31:0]} > {a[34:33], a[31:0]} ? {b, a} : {a, b};
  assign subtract = a[32] ^ b[32];
  assign greater_bits = {1'b1, greater[22:0]};
  assign lesser_bits = lesser[34:33] == FINITE ? {1'b1, lesser[22:0]} : 24'd0;
  assign distance = greater[31:23] - lesser[31:23];
  assign shift = distance > 26 ? 5'd26 : distance[4:0];
  assign aligned = {lesser_bits, 28'd0} >> shift;
  assign difference = {greater_bits, 1'b0} - (distance[0] ? {1'b0, lesser_bits} : {lesser_bits, 1'b0});
  assign cancels = subtract && lesser[34:33] == FINITE && distance <= 1 && !difference[24];

  logic [1:0]  kind_1;
  logic        sign_1, subtract_1, near_1;
  logic [9:0]  exponent_1;
  logic [23:0] greater_1, difference_1;
  logic [26:0] lesser_1;
  always_ff @(posedge clock) begin
    kind_1 <= subtract && lesser[34:33] == INFINITE ? NOT_A_NUMBER : greater[34:33];
    sign_1 <= greater[34:33] == ZERO ? a[32] & b[32] : greater[32];
    subtract_1 <= subtract;
    exponent_1 <= {1'b0, greater[31:23]};
    greater_1 <= greater_bits;
    lesser_1 <= {aligned[51:26], |aligned[25:0]};
    difference_1 <= difference[23:0];
    near_1 <= cancels;
  end

  // 2, far: add, move the leading one to its place, round.
  logic [27:0] total;
  logic [23:0] bits, rounded;
  logic        guard, sticky, carry;
  logic [9:0]  exponent, far_exponent;
  assign total = subtract_1 ? {1'b0, greater_1, 3'd0} - {1'b0, lesser_1} : {1'b0, greater_1, 3'd0} + {1'b0, lesser_1};
  always_comb begin
    if (total[27]) begin
      {bits, guard, sticky} = {total[27:3], |total[2:0]};
      exponent = exponent_1 + 10'd1;
    end else if (total[26]) begin
      {bits, guard, sticky} = {total[26:2], |total[1:0]};
      exponent = exponent_1;
    end else begin
      {bits, guard, sticky} = total[25:0];
      exponent = exponent_1 - 10'd1;
    end
  end
  assign {carry, rounded} = {1'b0, bits} + {24'd0, guard & (sticky | bits[0])};
  assign far_exponent = exponent + {9'd0, carry};

  // 2, near: move the leading one to its place.
  logic [23:0] shifted;
  logic [4:0]  zeros;
  logic [9:0]  near_exponent;
  normalise near (.value(difference_1), .shifted, .zeros);
  assign near_exponent = exponent_1 - 10'd1 - {5'd0, zeros};

  always_ff @(posedge clock) begin
    if (kind_1 == FINITE && near_1) begin
      sum[34:33] <= shifted[23] ? FINITE : ZERO;
      sum[32] <= sign_1 & shifted[23];
      sum[31:0] <= {near_exponent[8:0], shifted[22:0]};
    end else begin
      sum[34:33] <= kind_1 == FINITE && {1'b0, far_exponent} > LARGEST_EXPONENT ? INFINITE : kind_1;
      sum[32] <= sign_1;
      sum[31:0] <= {far_exponent[8:0], rounded[22:0]};
    end
  end
endmodule
