// Package docpages reads the Markdown documents of the repository, checks their links, and makes a static site of them.
//
// The index docs/README.md is the first page and the source of the navigation. A page of the site is each document in docs, and each
// document, source file and folder of the repository to which a page links; so the site works without the repository and
// without a network. All links of the site are relative, and the search is a script that reads an index from a file: the site works from
// a folder, and below any path of a web server.
//
// The package renders nothing that GitHub shows in another way: anchors follow the rules of GitHub, and HTML in a document is an
// error, except for comments. The programs internal/tools/site and internal/tools/release call it.
package docpages
