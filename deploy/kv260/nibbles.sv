// The eight 4-bit integers of a word by output. Nibble i of a word belongs to output 0, 2, 4, 6, 1, 3, 5, 7 (AutoAWQ's
// GEMM order). Combinational.
module nibbles (
    input  logic [31:0] word,
    output logic [31:0] by_output  // output j in bits 4 j on
);
  always_comb
    for (int i = 0; i < 4; i++) begin
      by_output[8*i+:4] = word[4*i+:4];
      by_output[8*i+4+:4] = word[16+4*i+:4];
    end
endmodule
