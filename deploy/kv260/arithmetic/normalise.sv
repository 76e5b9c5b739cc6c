// Shifts a value left until its top bit is 1, and counts the shifts. A value of 0 stays 0. Combinational.
module normalise #(
    parameter WIDTH = 24  // at most 31
) (
    input  logic [WIDTH-1:0] value,
    output logic [WIDTH-1:0] shifted,
    output logic [4:0]       zeros
);
  always_comb begin
    shifted = value;
    for (int i = 4; i >= 0; i--) begin
      zeros[i] = WIDTH > 2 ** i && shifted >> (WIDTH - 2 ** i) == 0;
      if (zeros[i]) shifted = shifted << 2 ** i;
    end
  end
endmodule
