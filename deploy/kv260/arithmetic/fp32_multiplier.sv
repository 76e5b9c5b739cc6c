// An FP32 multiplier: IEEE 754, to nearest even, with subnormals; NaN results are 0x7FC00000. A new pair may enter in
// every cycle; `product` is there 6 cycles later.
module fp32_multiplier (
    input  logic        clock,
    input  logic [31:0] a,
    input  logic [31:0] b,
    output logic [31:0] product
);
  logic [34:0] a_number, b_number, number;
  logic [31:0] single;

  recode_fp32 recode_a (.single(a), .number(a_number));
  recode_fp32 recode_b (.single(b), .number(b_number));
  multiply unit (.clock, .a(a_number), .b(b_number), .product(number));
  to_fp32 convert (.number, .single);
  always_ff @(posedge clock) product <= single;
endmodule
