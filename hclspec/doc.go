// Package hclspec is the schema of the config block of a plugin or of a task, and decodes the
// bytes of such a block in the plugin.
//
// An author of a plugin writes a schema with [Object] and the functions for its parts, such as [Attr],
// [Block] and [Default]. Package sdk decodes the block. The rest of the package is for hosts and for
// programs that print or convert schemas.
//
// The plugin describes its block with a Spec, which package specwire converts to the messages of specpb. The
// host decodes the block with the Spec (package block), and sends the value as msgpack. The
// plugin decodes the bytes into a struct with codec tags. Driver state uses a second, older
// dialect of msgpack (MarshalState).
//
// Specs come from plugins, which cannot crash the host. The package starts no process, opens
// no file, and links neither an HCL parser nor protobuf.
//
// A comment with the words "For hosts only." marks a declaration that authors of plugins do not need. A
// later version can change it: docs/reference/compatibility.md promises the other declarations.
package hclspec
