// Command publish writes the module of a work tree as the files of a module proxy, as if the work tree were a release.
// A plugin in another directory then builds against the release that does not exist yet:
//
//	go run -C internal/tools ./publish -version v0.1.0 -o DIR
//	GOPROXY=file://DIR,https://proxy.golang.org GONOSUMDB=github.com/nomad-lite/nomad-lite go mod tidy
//
// The module has the files that git tracks or would add. By the rules of modules, it does not have the files of nested
// modules, such as internal/tools. Use a module cache of its own (GOMODCACHE) for such builds: the module cache never
// replaces a version, so that a later work tree with the same version would be ignored.
package main
