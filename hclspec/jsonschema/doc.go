// Package jsonschema has the JSON Schemas (draft 2020-12) of HCL in its JSON syntax.
//
// The schemas accept what the HCL library accepts: a block is an object or a list of objects, each string can be a
// template, and primitive values are converted. They refer to the definitions that Definitions returns. Packages
// hclspec and jobspec put the schemas together.
package jsonschema
