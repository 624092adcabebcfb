package cli

import (
	"errors"
	"io/fs"
	"os"
)

// WriteNewFile creates a file with a text. It returns an error for which errors.Is with fs.ErrExist is true if the name is in use.
func WriteNewFile(name, text string, mode fs.FileMode) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}
