// Package apiclient connects commands to the HTTP API of an agent.
//
// It has the connection flags, the options of reads and writes, errors with advice, the
// lookup of objects by the prefix of an id, and shell completion from the answers of an
// agent. Parts that are missing in an answer are zero values. It prints nothing.
package apiclient
