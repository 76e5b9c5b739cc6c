// An integer from -15 to 15 to the accelerator's format (number.svh). Combinational, exact. Zero is +0.
module recode_integer (
    input  logic [4:0]  value,  // two's complement
    output logic [34:0] number
);
  `include "number.svh"

  logic [3:0] magnitude;
  assign magnitude = value[4] ? -value[3:0] : value[3:0];

  always_comb begin
    casez (magnitude)
      4'b1???: number[31:0] = {9'd162, magnitude[2:0], 20'd0};
      4'b01??: number[31:0] = {9'd161, magnitude[1:0], 21'd0};
      4'b001?: number[31:0] = {9'd160, magnitude[0], 22'd0};
      default: number[31:0] = {9'd159, 23'd0};
    endcase
    number[34:33] = magnitude == 0 ? ZERO : FINITE;
    number[32] = value[4];
  end
endmodule
