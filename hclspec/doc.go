// Package hclspec implements the schema of the config block of a plugin or of a task, and
// converts such a block to the bytes that the plugin decodes.
//
// The plugin describes its block with a Spec, which is sent as the messages of specpb. The
// host has the block as a map, decodes it with the Spec into a typed value, and sends the
// value as msgpack. The plugin decodes the bytes into a struct with codec tags. Driver
// state uses a second, older dialect of msgpack (MarshalState).
//
// Specs come from plugins, and blocks from untrusted job files: neither can crash the host.
// The package starts no process, opens no file, and does not depend on jobs.
package hclspec
