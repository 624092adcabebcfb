// Docnames reports names in comments and documents that do not exist in the code.
//
//	docnames [directory]
//
// The directory is the root of the work tree, by default the root of the current one. Docnames reads
// the packages of its module and of nested modules, without testdata and generated code.
//
// It checks all comments:
//
//   - a link, which is a name in brackets, must lead to a declaration;
//   - pkg.Name and Type.Member must exist, if pkg is a package of the project or of the standard
//     library, or Type a type of the same package;
//   - a word with a capital inside must be a name or be in a string somewhere in the project, or in the
//     package, if it starts with a small letter; a constant of another package needs the name of its
//     package;
//   - a name that "is nil" must be a name of the package;
//   - the comment of a function or type must not start with the name of another declaration, and the
//     comment of a field not with a former name;
//   - the comment of a package must start with the name of this package.
//
// In a table of a Markdown document whose first columns are Package and Function, each row must have the folder
// of a package, and functions, methods or types that this package declares.
//
// A file name must name a file in the package, or be a path from the package folder, from the root or within the
// standard library.
//
// Words in quotes, addresses of the web and code blocks are not checked, so that a comment can quote the
// name of another program. Docnames prefers silence to a false report: it does not resolve names of other modules, and a
// member of a type that embeds another one is not checked. It only parses and does not check types,
// so that it takes seconds. The exit status is 1 if it reports a name.
package main
