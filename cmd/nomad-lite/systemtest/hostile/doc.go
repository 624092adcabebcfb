// Package hostile tests adversaries: clients without a token, other accounts of the machine, and many clients at once.
package hostile
