// Package schematest validates JSON in tests by the JSON Schemas that the program prints.
//
// It owns no schema: runtime/job/jobspec has that of job files, and runtime/agent/config that of configurations of agents.
// Their tests call it.
package schematest
