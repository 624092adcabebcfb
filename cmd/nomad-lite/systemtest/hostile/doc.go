// Package hostile tests attacks: by clients without a token, by tasks, by other accounts of the machine, and by many
// clients at once.
package hostile
