// The accelerator's format (number.svh) to FP32. Combinational, exact: what a subnormal number loses is 0.
module to_fp32 (
    input  logic [34:0] number,
    output logic [31:0] single
);
  `include "number.svh"

  logic [1:0]  kind;
  logic        sign;
  logic [8:0]  exponent, shift;
  logic [22:0] fraction;
  logic [23:0] subnormal;
  assign {kind, sign, exponent, fraction} = number;
  assign shift = 9'd33 - exponent;
  assign subnormal = {1'b1, fraction} >> shift[4:0];

  always_comb begin
    case (kind)
      ZERO:     single = {sign, 31'd0};
      INFINITE: single = {sign, 8'hFF, 23'd0};
      FINITE:   single = exponent < 33 ? {sign, 8'd0, subnormal[22:0]} : {sign, exponent[7:0] - 8'd32, fraction};
      default:  single = 32'h7FC00000;
    endcase
  end
endmodule
