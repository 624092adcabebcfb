// Package manpages makes the manual pages of nomad-lite from the help texts that the program prints.
//
// Its source is the output of the program, because a module that builds the project cannot import the command tree
// without all dependencies of the product. It runs the program with -help for each command, parses the sections of the
// help text, and writes roff: one page for the program, and one for each command, which includes its subcommands. The
// program internal/tools/release calls it. github.com/spf13/cobra/doc is no alternative: it needs the command tree, so it and its
// converter of Markdown would be dependencies of the product.
package manpages
