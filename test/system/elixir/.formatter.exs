# SPDX-License-Identifier: Apache-2.0
[inputs: ["{mix,.formatter}.exs", "lib/**/*.ex"], line_length: 120]
