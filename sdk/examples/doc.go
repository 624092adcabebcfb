// Package examples contains plugins that show the use of the SDK.
//
// Drivers: sleeper implements the required methods of a driver, script runs
// processes, machine wraps a program that has a control socket and runs no commands.
//
// Device plugins: devnodes offers device files of the machine, such as serial ports.
//
// Hooks: stamp implements every hook point and keeps state, gatekeeper fails the
// start of a task by policy, sidelog watches a task through the host, certificate
// gives a task a TLS certificate and renews it. The directory notify has a hook in
// Python, written from the .proto files alone.
package examples
