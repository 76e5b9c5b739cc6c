// The format of numbers inside the accelerator: 35 bits, {kind[1:0], sign, exponent[8:0], fraction[22:0]}.
// It holds every FP32 value, and subnormals have a leading one like all others, so that only the conversions at the
// edges shift them ("recoded", as Berkeley HardFloat calls such formats).
//
// - A finite number is (1 + fraction / 2^23) * 2^(exponent - 159): `exponent` is FP32's biased exponent plus 32, from
//   10 (2^-149) to 286 (2^127). Of a subnormal number, the bits of `fraction` below 2^-149 are 0.
// - Exponent and fraction of the other kinds mean nothing. A NaN becomes 0x7FC00000 when it leaves.

localparam [1:0] ZERO = 2'd0;
localparam [1:0] FINITE = 2'd1;
localparam [1:0] INFINITE = 2'd2;
localparam [1:0] NOT_A_NUMBER = 2'd3;

localparam signed [10:0] LARGEST_EXPONENT = 11'sd286;
localparam signed [10:0] SMALLEST_NORMAL_EXPONENT = 11'sd33;
