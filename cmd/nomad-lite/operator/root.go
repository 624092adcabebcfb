package operator

import (
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const keyringHelp = `Manage the keys with which the items of variables are encrypted in the state file.

The keys are in the file keyring.json of the agent's data directory. Without them the
items in a copy of the state file cannot be read: back up both, apart from each other.`

const keyringRotateHelp = `Rotate the encryption key: variables that are written from now on are encrypted
with a new key.

The former keys stay in the key file, because older variables need them. With -full
all variables are encrypted again with the new key; then 'nomad-lite operator root
keyring remove' can remove the former keys.`

const keyringRemoveHelp = `Remove a key that is no longer in use.

The active key cannot be removed. A key that something is encrypted with is removed
with -force only: all that the agent can read is encrypted with the active key before.
A backup of the state file that needs the key cannot be read without it.`

func newRootKeyringCommand(s *cli.Streams) *cobra.Command {
	keyring := cli.NewGroupCommand("keyring", "Manage the encryption keys of variables",
		newKeyringListCommand(s), newKeyringRotateCommand(s), newKeyringRemoveCommand(s))
	keyring.Long = keyringHelp
	return cli.NewGroupCommand("root", "Manage the encryption keys of variables", keyring)
}

// printRootKeys prints a table of encryption keys in Nomad's format.
func printRootKeys(s *cli.Streams, verbose bool, keys ...*api.RootKeyMeta) error {
	p := output.NewPage(s)
	t := output.NewTable("Key", "State", "Create Time", "Publish Time")
	for _, k := range keys {
		if k == nil {
			continue // a faulty server can send null
		}
		published := "<none>"
		if k.PublishTime > 0 {
			published = output.FormatDate(k.PublishTime)
		}
		t.AddRow(output.ShortIDUnlessVerbose(k.KeyID, verbose), string(k.State), output.FormatDate(k.CreateTime), published)
	}
	p.AddTableOrMessage(t, "No keys found")
	return output.PrintPage(s, p)
}

func newKeyringListCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	var verbose bool
	cmd := &cobra.Command{
		Use:               "list [flags]",
		Short:             "List the encryption keys of variables",
		Args:              cli.RequireArgCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client.Client()
			if err != nil {
				return err
			}
			keys, _, err := c.Keyring().List(apiclient.QueryOptions(cmd.Context(), ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("list keys", err)
			}
			return printRootKeys(s, verbose, keys...)
		},
	}
	client.Register(cmd)
	cmd.Flags().BoolVar(&verbose, "verbose", false, "show whole ids")
	return cmd
}

func newKeyringRotateCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	var o api.KeyringRotateOptions
	var verbose, now bool
	var prepublish time.Duration
	cmd := &cobra.Command{
		Use:               "rotate [flags]",
		Short:             "Rotate the encryption key of variables",
		Long:              keyringRotateHelp,
		Args:              cli.RequireArgCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if prepublish != 0 {
				return cli.UsageError(cmd, errors.New("-prepublish has no meaning here: a new key is used at once"))
			}
			c, err := client.Client()
			if err != nil {
				return err
			}
			key, _, err := c.Keyring().Rotate(&o, apiclient.WriteOptions(cmd.Context(), ""))
			if err != nil {
				return apiclient.WrapErrorWithAdvice("rotate keys", err)
			}
			return printRootKeys(s, verbose, key)
		},
	}
	client.Register(cmd)
	cmd.Flags().BoolVar(&o.Full, "full", false, "encrypt all variables again with the new key")
	cmd.Flags().BoolVar(&now, "now", false, "use the new key at once, which is done in any case")
	cmd.Flags().DurationVar(&prepublish, "prepublish", 0, "refused: `duration` before the key is used")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "show the whole id")
	return cmd
}

func newKeyringRemoveCommand(s *cli.Streams) *cobra.Command {
	var client apiclient.Flags
	var force bool
	cmd := &cobra.Command{
		Use:               "remove [flags] KEY",
		Short:             "Remove an encryption key of variables",
		Long:              keyringRemoveHelp,
		Args:              cli.RequireArgCount(1, 1, "the whole id of a key; 'nomad-lite operator root keyring list -verbose' lists them"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client.Client()
			if err != nil {
				return err
			}
			if _, err := c.Keyring().Delete(&api.KeyringDeleteOptions{KeyID: args[0], Force: force}, apiclient.WriteOptions(cmd.Context(), "")); err != nil {
				return apiclient.WrapErrorWithAdvice("remove key", err)
			}
			p := output.NewPage(s)
			p.AddLine("Removed key %s", args[0])
			return output.PrintPage(s, p)
		},
	}
	client.Register(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "remove the key even if something is encrypted with it")
	return cmd
}
