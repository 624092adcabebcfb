// Command apitypes reads the OpenAPI document of the agent from its standard input, and writes declarations for tsc: a
// namespace API with an interface for each schema, and with the types GetResponse and PutResponse, which select the type of a response by the path of a request.
// A test of runtime/agent/httpapi compares its output with the declarations of the web page.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "apitypes:", err)
		os.Exit(1)
	}
}

func run(stdin io.Reader, stdout io.Writer) error {
	var d document
	if err := json.NewDecoder(stdin).Decode(&d); err != nil {
		return fmt.Errorf("read the OpenAPI document: %w", err)
	}
	text, err := d.declarations()
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, text)
	return err
}
