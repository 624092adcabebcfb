package systemd

import (
	"fmt"
	"os/user"
	"strings"
)

// specifiers replaces specifiers such as %i.
type specifiers struct {
	unit *unit
	user string // User of the service; empty means root
}

func (s specifiers) expand(text string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "%")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		if rest == "" {
			out.WriteByte('%')
			return out.String(), nil
		}
		v, err := s.valueOf(rest[0])
		if err != nil {
			return "", err
		}
		out.WriteString(v)
		text = rest[1:]
	}
}

func (s specifiers) valueOf(letter byte) (string, error) {
	u := s.unit
	switch letter {
	case '%':
		return "%", nil
	case 'i':
		return u.instance, nil
	case 'I':
		return unescapeName(u.instance), nil
	case 'n':
		return u.name, nil
	case 'N':
		return u.stem, nil
	case 'p':
		return u.prefix, nil
	case 'P':
		return unescapeName(u.prefix), nil
	case 'j':
		return u.prefix[strings.LastIndex(u.prefix, "-")+1:], nil
	case 'J':
		return unescapeName(u.prefix[strings.LastIndex(u.prefix, "-")+1:]), nil
	case 'f':
		if u.instance != "" {
			return "/" + strings.TrimPrefix(unescapeName(u.instance), "/"), nil
		}
		return "/" + strings.TrimPrefix(unescapeName(u.prefix), "/"), nil
	case 't':
		return "/run", nil
	case 'S':
		return "/var/lib", nil
	case 'C':
		return "/var/cache", nil
	case 'L':
		return "/var/log", nil
	case 'E':
		return "/etc", nil
	case 'T':
		return "/tmp", nil
	case 'V':
		return "/var/tmp", nil
	case 'u':
		return s.userName(), nil
	case 'h':
		if s.userName() == "root" {
			return "/root", nil
		}
		account, err := user.Lookup(s.userName())
		if err != nil {
			return "", fmt.Errorf("%%h is the home directory of %s: %w", s.userName(), err)
		}
		return account.HomeDir, nil
	}
	return "", fmt.Errorf("the specifier %%%c has no counterpart: write its value, or %%%% for a percent sign", letter)
}

func (s specifiers) userName() string {
	if s.user == "" {
		return "root"
	}
	return s.user
}

// unescapeName reverses the escapes of names of units: a dash stands for a slash, and a backslash with x and two digits for a character.
func unescapeName(name string) string {
	var out strings.Builder
	for name != "" {
		switch {
		case name[0] == '-':
			out.WriteByte('/')
		case strings.HasPrefix(name, `\x`):
			if unescaped, rest, err := unescape(name); err == nil {
				out.WriteString(unescaped)
				name = rest
				continue
			}
			out.WriteByte(name[0])
		default:
			out.WriteByte(name[0])
		}
		name = name[1:]
	}
	return out.String()
}
