// Package block decodes config blocks with the schemas of plugins.
//
// A host has a block as a map. The package decodes it with a hclspec.Spec into a typed value, of
// which the plugin receives the bytes, reports errors for users, and describes the block as JSON
// Schema. A plugin does not import the package, so that its program links no HCL parser.
//
// Specs come from plugins, and blocks from untrusted job files: neither can crash the host.
package block
