// Package transitioncheck compares recorded transitions with the table of steps. Tests import it.
package transitioncheck
