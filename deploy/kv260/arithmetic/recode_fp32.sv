// FP32 to the accelerator's format (number.svh). Combinational, exact.
module recode_fp32 (
    input  logic [31:0] single,
    output logic [34:0] number
);
  `include "number.svh"

  logic [7:0]  exponent;
  logic [22:0] fraction, shifted;
  logic [4:0]  zeros;
  assign {exponent, fraction} = single[30:0];

  normalise #(.WIDTH(23)) subnormal (.value(fraction), .shifted, .zeros);

  assign number[32] = single[31];
  always_comb begin
    if (exponent == 8'hFF) begin
      number[34:33] = fraction == 0 ? INFINITE : NOT_A_NUMBER;
      number[31:0]  = 32'd0;
    end else if (exponent == 0) begin
      number[34:33] = fraction == 0 ? ZERO : FINITE;
      number[31:0]  = {9'd32 - {4'd0, zeros}, shifted[21:0], 1'b0};
    end else begin
      number[34:33] = FINITE;
      number[31:0]  = {9'd32 + {1'b0, exponent}, fraction};
    end
  end
endmodule
