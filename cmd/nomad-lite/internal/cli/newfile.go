package cli

import (
	"errors"
	"io/fs"
	"os"
)

// WriteNewFile creates a file with a text. If a file with this name exists, errors.Is(err, fs.ErrExist) is true.
func WriteNewFile(name, text string, mode fs.FileMode) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}
