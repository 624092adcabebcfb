// Package extras has the services that this program adds to an agent: the agent opens, runs and closes without each of them.
package extras
