package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newMan returns the hidden command that writes manual pages for packages of mqnotify.
func newMan(*app) *cobra.Command {
	return &cobra.Command{
		Use:               "man DIRECTORY",
		Short:             "Write the manual pages into a directory",
		Long:              "Writes a manual page of section 1 for each command into the directory, which it makes if necessary.",
		Example:           "  mqnotify man /usr/local/share/man/man1",
		Args:              oneName("directory"),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		Hidden:            true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // manual pages are readable by all
				return fmt.Errorf("make the directory: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: "mqnotify", Manual: "mqnotify"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("write the manual pages: %w", err)
			}
			return nil
		},
	}
}
