// Package taskreason reads from any agent what package reason needs, and prints the reasons why tasks of a job do not run.
package taskreason
