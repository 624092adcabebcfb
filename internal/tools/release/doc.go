// Release writes all files of a release into a directory.
//
//	release -version 0.1.0 [-out dist] [-targets linux/amd64,…] [-source directory] [-revision commit]
//
// It compiles the program for each system, and makes archives, packages for Debian, RPM and Alpine, container images,
// lists of the modules in each binary, the site of the documentation, the JSON Schemas of job files and of
// configurations, the script install.sh and SHA256SUMS. The same sources give the same bytes on each
// machine with the same version of Go: all times are the time of the commit, or SOURCE_DATE_EPOCH. It publishes nothing.
// RELEASING.md describes its use, and DESIGN.md the packages.
package main
