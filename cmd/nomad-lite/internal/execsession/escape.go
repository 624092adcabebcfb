package execsession

import "io"

// escapeReader reads the input of a session. At the start of a line, the escape character and a dot
// end the session, and the escape character twice is sent as one.
type escapeReader struct {
	r               io.Reader
	escapeChar      byte
	onDetach        func()
	atLineStart     bool   // the next byte starts a line
	afterEscapeChar bool   // the last byte was the escape character
	unreadInput     []byte // bytes read and not yet returned
}

func (e *escapeReader) Read(p []byte) (int, error) {
	for len(e.unreadInput) == 0 {
		typed := make([]byte, len(p))
		n, err := e.r.Read(typed)
		for _, c := range typed[:n] {
			if !e.add(c) {
				e.onDetach()
				return 0, io.EOF
			}
		}
		if err != nil && len(e.unreadInput) == 0 {
			return 0, err
		}
	}
	n := copy(p, e.unreadInput)
	e.unreadInput = e.unreadInput[n:]
	return n, nil
}

// add processes the input byte c, and reports whether the session continues.
func (e *escapeReader) add(c byte) bool {
	switch {
	case e.afterEscapeChar && c == '.':
		return false
	case e.afterEscapeChar:
		e.afterEscapeChar = false
		e.unreadInput = append(e.unreadInput, e.escapeChar)
		if c == e.escapeChar {
			e.atLineStart = false
			return true
		}
	case e.atLineStart && c == e.escapeChar:
		e.afterEscapeChar = true
		return true
	}
	e.atLineStart = c == '\r' || c == '\n'
	e.unreadInput = append(e.unreadInput, c)
	return true
}
