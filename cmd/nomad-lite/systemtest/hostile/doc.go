// Package hostile tests attacks: by clients without a token, by tasks, by other accounts of the machine, by servers of a
// cluster, and by many clients at once.
package hostile
