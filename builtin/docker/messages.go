package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// readEngineMessages reads the engine's messages about a pull, a load or an import until the end of the
// stream, calls onMessage with the status of each, and returns the error that the engine reports in
// the stream.
func readEngineMessages(r io.Reader, onMessage func(status string)) error {
	decoder := json.NewDecoder(r)
	for {
		var message struct {
			Status      string `json:"status"`
			Error       string `json:"error"`
			ErrorDetail struct {
				Message string `json:"message"`
			} `json:"errorDetail"`
		}
		switch err := decoder.Decode(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("the stream of messages broke off: %w", err)
		case message.ErrorDetail.Message != "":
			return errors.New(message.ErrorDetail.Message)
		case message.Error != "":
			return errors.New(message.Error)
		}
		onMessage(message.Status)
	}
}
