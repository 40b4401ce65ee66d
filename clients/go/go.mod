module tidegate.example/repository/clients/go

go 1.22
