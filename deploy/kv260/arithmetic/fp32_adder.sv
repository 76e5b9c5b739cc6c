// An FP32 adder: IEEE 754, to nearest even, with subnormals; NaN results are 0x7FC00000. A new pair may enter in every
// cycle; `sum` is there 4 cycles later.
module fp32_adder (
    input  logic        clock,
    input  logic [31:0] a,
    input  logic [31:0] b,
    output logic [31:0] sum
);
  logic [34:0] a_recoded, b_recoded, a_number, b_number, number;
  logic [31:0] single;

  recode_fp32 recode_a (.single(a), .number(a_recoded));
  recode_fp32 recode_b (.single(b), .number(b_recoded));
  always_ff @(posedge clock) {a_number, b_number} <= {a_recoded, b_recoded};
  add unit (.clock, .a(a_number), .b(b_number), .sum(number));
  to_fp32 convert (.number, .single);
  always_ff @(posedge clock) sum <= single;
endmodule
