// FP16 to the accelerator's format (number.svh). Combinational, exact. At most 11 significant bits are not 0.
module recode_fp16 (
    input  logic [15:0] half,
    output logic [34:0] number
);
  `include "number.svh"

  logic [4:0] exponent, zeros;
  logic [9:0] fraction, shifted;
  assign {exponent, fraction} = half[14:0];

  normalise #(.WIDTH(10)) subnormal (.value(fraction), .shifted, .zeros);

  assign number[32] = half[15];
  always_comb begin
    if (exponent == 5'h1F) begin
      number[34:33] = fraction == 0 ? INFINITE : NOT_A_NUMBER;
      number[31:0]  = 32'd0;
    end else if (exponent == 0) begin
      number[34:33] = fraction == 0 ? ZERO : FINITE;
      number[31:0]  = {9'd144 - {4'd0, zeros}, shifted[8:0], 14'd0};
    end else begin
      number[34:33] = FINITE;
      number[31:0]  = {9'd144 + {4'd0, exponent}, fraction, 13'd0};
    end
  end
endmodule
