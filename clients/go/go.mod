module github.com/mail-appliance/mail-appliance-go

go 1.19
