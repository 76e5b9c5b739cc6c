// The arithmetic units side by side, for the test bench.
module units (
    input  logic        clock,
    input  logic        turn,
    input  logic [31:0] a,
    input  logic [31:0] b,
    input  logic [15:0] half,
    input  logic [4:0]  integer_in,
    output logic [31:0] product,  // a * b
    output logic [31:0] sum,      // a + b
    output logic [31:0] single,   // half, in FP32
    output logic [31:0] element   // integer_in * (a * half), by a processing element
);
  logic [34:0] x, scale, element_number;

  fp32_multiplier multiplier (.clock, .a, .b, .product);
  fp32_adder adder (.clock, .a, .b, .sum);
  recode_fp16 recode_half (.half, .number(scale));
  to_fp32 of_half (.number(scale), .single);
  recode_fp32 recode_a (.single(a), .number(x));
  processing_element pe (.clock, .turn, .x, .scale, .integer_in, .product(element_number));
  to_fp32 of_element (.number(element_number), .single(element));
endmodule
