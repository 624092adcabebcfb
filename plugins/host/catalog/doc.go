// Package catalog lists the available plugins: the builtins of this binary, the files
// in the plugin directory, and the files that plugin blocks of the configuration name.
//
// The package decides which plugins may be started. A plugin is identified by a name
// and looked up among the enumerated plugins, so a name is never used as a path. A file
// is opened once and every check is made on that handle; an ELF file is later executed
// through the same handle.
//
// The package starts no process and cannot determine which driver a file contains: only
// the running plugin reports that. Package supervisor is its caller.
package catalog
