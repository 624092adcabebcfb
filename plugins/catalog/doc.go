// Package catalog knows which plugins exist: the builtins of this binary, the
// files in the plugin directory, and what the configuration file says about
// them.
//
// It owns the rules of who may be started. A plugin is named by an identifier
// and looked up in what was enumerated, so no name ever becomes a path. A file
// is opened once and everything is checked on that handle; an ELF file is
// executed through the same handle later.
//
// It starts no process and does not know which driver a file contains: only
// the running plugin can say that. Package supervisor is its caller.
package catalog
