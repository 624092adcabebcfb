// Package hclspec says what the config block of a plugin or of a task accepts,
// and turns such a block into the bytes that the plugin reads.
//
// The plugin describes its block with a Spec, which travels in the messages of
// specpb. The host holds a block without a schema (a map), decodes it with the
// Spec into a typed value, and sends that as msgpack. The plugin reads the
// bytes into a struct with codec tags. Driver state has a second, older dialect
// of msgpack (MarshalState).
//
// Specs come from plugins, and blocks from job files of strangers: neither may
// bring down the host. It owns no process and no file, and knows nothing about
// jobs.
package hclspec
