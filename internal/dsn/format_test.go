package dsn

import "github.com/go-sql-driver/mysql"

// Format returns user, address and database of cfg in the driver's form, without
// the password and the parameters.
func Format(cfg *mysql.Config) string {
	shown := mysql.NewConfig()
	shown.User, shown.Net, shown.Addr, shown.DBName = cfg.User, cfg.Net, cfg.Addr, cfg.DBName
	return shown.FormatDSN()
}
