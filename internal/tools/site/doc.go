// Site writes the static site of the documentation into a folder.
//
//	site [-out dist/site] [-version VERSION] [directory]
//
// The directory is the root of the work tree, by default the root of the current one. A folder -out that is not empty must be an earlier site,
// which is replaced. With -check, the program writes nothing, and prints what is wrong in the Markdown documents of the repository; the
// exit status is 1 if it prints something.
package main
